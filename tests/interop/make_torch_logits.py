"""Write torch_logits.json: names and shapes of PyTorch networks' tensors, and what these networks answer.

Run where torch, torchvision and timm are installed: `python tests/interop/make_torch_logits.py`. The tests make the
same weights from the names and ask this package's networks for the same answers, without PyTorch.
"""

import json
from pathlib import Path

import numpy as np

SIZES = {"resnetv2_18": 64, "resnetv2_50": 64, "resnet18": 64, "resnet50": 64, "PreActResNet18": 32, "ResNet18": 32}
"""Networks, and the height and width of the images that they are asked about."""


def weights(shapes):
    """Return weights that are the same everywhere, by name, of networks whose signal neither dies nor explodes."""
    random = np.random.RandomState(0)  # its numbers are frozen, unlike those of NumPy's newer generators
    values = {}
    for name, shape in sorted(shapes.items()):
        if len(shape) > 1:
            value = random.normal(0, np.sqrt(2 / (shape[0] * np.prod(shape[2:]))), shape)
        elif name.endswith(("running_var", "weight")):
            value = random.uniform(0.5, 1.5, shape)
        else:
            value = random.normal(0, 0.1, shape)
        values[name] = value.astype("float32")
    return values


def images(size):
    """Return two images (2, size, size, 3)."""
    return np.random.RandomState(1).uniform(-1, 1, (2, size, size, 3)).astype("float32")


def cifar_networks():
    """Return the two networks of many PyTorch repositories for CIFAR, under the names that their tensors have there."""
    import torch
    from torch import nn

    class Unit(nn.Module):
        def __init__(self, inputs, outputs, stride, preactivation):
            super().__init__()
            self.preactivation = preactivation
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(inputs if preactivation else outputs)
            self.bn2 = nn.BatchNorm2d(outputs)
            if stride > 1 or inputs != outputs:
                norm = [] if preactivation else [nn.BatchNorm2d(outputs)]
                self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), *norm)

        def forward(self, x):
            if self.preactivation:
                activated = torch.relu(self.bn1(x))
                skip = self.shortcut(activated) if hasattr(self, "shortcut") else x
                return skip + self.conv2(torch.relu(self.bn2(self.conv1(activated))))
            skip = self.shortcut(x) if hasattr(self, "shortcut") else x
            return torch.relu(skip + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))

    class Network(nn.Module):
        def __init__(self, preactivation):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
            self.bn1 = nn.Identity() if preactivation else nn.BatchNorm2d(64)
            self.begin = nn.Identity() if preactivation else nn.ReLU()
            widths = (64, 64, 128, 256, 512)
            for stage in range(1, 5):
                first = Unit(widths[stage - 1], widths[stage], 1 if stage == 1 else 2, preactivation)
                second = Unit(widths[stage], widths[stage], 1, preactivation)
                setattr(self, f"layer{stage}", nn.Sequential(first, second))
            self.linear = nn.Linear(512, 10)

        def forward(self, x):
            x = self.begin(self.bn1(self.conv1(x)))
            for stage in range(1, 5):
                x = getattr(self, f"layer{stage}")(x)
            return self.linear(x.mean((2, 3)))

    return {"PreActResNet18": Network(True), "ResNet18": Network(False)}


def main():
    import timm
    import torch
    import torchvision

    networks = cifar_networks()
    networks |= {name: timm.create_model(name) for name in ("resnetv2_18", "resnetv2_50")}
    networks |= {name: getattr(torchvision.models, name)() for name in ("resnet18", "resnet50")}
    versions = {library.__name__: library.__version__ for library in (torch, torchvision, timm)}
    record = {"versions": versions, "networks": {}}
    for name, size in SIZES.items():
        network = networks[name].eval()
        state = {key: value for key, value in network.state_dict().items() if "num_batches" not in key}
        shapes = {key: list(value.shape) for key, value in state.items()}
        values = {key: torch.from_numpy(value) for key, value in weights(shapes).items()}
        network.load_state_dict(values, strict=False)
        with torch.no_grad():
            logits = network(torch.from_numpy(images(size).transpose(0, 3, 1, 2).copy()))
        record["networks"][name] = {"shapes": shapes, "logits": logits[:, :10].double().numpy().round(6).tolist()}
    text = json.dumps(record).replace('], "', '],\n"')
    Path(__file__).with_name("torch_logits.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
