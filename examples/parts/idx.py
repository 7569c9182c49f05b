"""The file format of MNIST and its relatives: two zeros, the type (8 is bytes), the number of dimensions, each, the values."""

import gzip

import torch

import hvd_trainer as ht


def read_idx(path):
    """The bytes in `path`, or in `path`.gz, as a tensor of their shape."""
    packed = path.with_name(f"{path.name}.gz")
    if not path.exists() and not packed.exists():
        fix = "apt-get install dataset-fashion-mnist (Debian), or --data FOLDER with the four IDX files"
        raise ht.errors.DataError(f"neither {path} nor {packed.name} exists", "one of them", fix)
    data = bytearray(path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes()))
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, 4 + 4 * data[3], 4)]
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * len(shape)).view(shape)
