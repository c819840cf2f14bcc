# SPDX-License-Identifier: Apache-2.0
"""What torchvision's ImageFolder finds in a folder (find_classes and make_dataset of torchvision/datasets/folder.py, written
again), as records "LABEL PATH" that end in a zero byte."""
import os
import sys

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

folder = sys.argv[1]
classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
for label, name in enumerate(classes):
    for root, _, files in sorted(os.walk(os.path.join(folder, name), followlinks=True)):
        for file in sorted(files):
            if file.lower().endswith(EXTENSIONS):
                path = os.path.relpath(os.path.join(root, file), folder)
                sys.stdout.buffer.write(b"%d " % label + os.fsencode(path) + b"\0")
