"""ResNet-50 in plain torch, with the initial values of Goyal et al. 2017; `imagenet_folder.py` trains it.

The stride is in the 3 x 3 convolution, as in torchvision and in the paper's code.
Source: He et al. 2015, arXiv 1512.03385, table 1; Goyal et al. 2017, arXiv 1706.02677, section 5.1.
"""

from torch import nn
from torch.nn import functional as F


def conv(channels_in, channels_out, size, stride=1):
    layer = nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return [layer, nn.BatchNorm2d(channels_out)]


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        first, middle = conv(channels, width, 1), conv(width, width, 3, stride)
        self.branch = nn.Sequential(*first, nn.ReLU(True), *middle, nn.ReLU(True), *conv(width, 4 * width, 1))
        nn.init.zeros_(self.branch[-1].weight)  # each block begins as the identity
        same = stride == 1 and channels == 4 * width
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv(channels, 4 * width, 1, stride))

    def forward(self, x):
        return F.relu(self.branch(x) + self.shortcut(x))


def resnet50(num_classes):
    layers, channels = [*conv(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, padding=1)], 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(depth):
            layers.append(Bottleneck(channels, width, stride if number == 0 else 1))
            channels = 4 * width
    head = nn.Linear(channels, num_classes)
    nn.init.normal_(head.weight, std=0.01)
    nn.init.zeros_(head.bias)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
