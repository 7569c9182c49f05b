"""Images from <class>/*.jpg as a data set, with the augmentation that ResNets are trained with."""

import math
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import hvd_trainer as ht


class ImageFolder:
    """(image, number of the class): normalised float32 of 3 x size x size; the classes in alphabetical order.

    Args:
        folder: has one folder a class.
        size: of the square that is cut out, in pixels.
        augment: a random part of the image, mirrored or not; else the centre. `ht.Loader` seeds `random` from
            (seed, epoch, index), so the images are the same on any number of ranks.
    """

    def __init__(self, folder, size, augment):
        classes = sorted(path for path in Path(folder).glob("*") if path.is_dir())
        self.files = [(file, label) for label, path in enumerate(classes) for file in sorted(path.iterdir())]
        self.num_classes, self.size, self.augment = len(classes), size, augment
        if not self.files:
            fix = "--data FOLDER, with train/<class>/*.jpg and val/<class>/*.jpg in it"
            raise ht.errors.DataError(f"no images in {folder}", "folders of images, one a class", fix)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file, label = self.files[index]
        with Image.open(file) as image:
            box = random_box(*image.size) if self.augment else central_box(*image.size, 224 / 256)
            image = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        if self.augment and random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = (np.asarray(image, np.float32) / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
        return torch.from_numpy(pixels).float().permute(2, 0, 1), label


def random_box(width, height):
    """8 to 100 % of the area, sides up to 4 to 3 (Szegedy et al. 2014, arXiv 1409.4842, section 6)."""
    for _ in range(10):
        area, ratio = width * height * random.uniform(0.08, 1), math.exp(random.uniform(-1, 1) * math.log(4 / 3))
        w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if w <= width and h <= height:
            x, y = random.uniform(0, width - w), random.uniform(0, height - h)
            return x, y, x + w, y + h
    return central_box(width, height, 1)


def central_box(width, height, share):
    side = share * min(width, height)
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2
