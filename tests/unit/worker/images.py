# SPDX-License-Identifier: Apache-2.0
"""usage: images.py DIR: 40 small pictures in two classes, one of them no picture at all."""
import os
import random
import sys

from PIL import Image

random.seed(1)
for i in range(40):
    folder = os.path.join(sys.argv[1], "cats" if i < 20 else "dogs")
    os.makedirs(folder, exist_ok=True)
    name = os.path.join(folder, "%02d.%s" % (i, "png" if i % 4 == 0 else "jpg"))
    if i == 13:
        with open(name, "wb") as file:
            file.write(b"this is no picture")
        continue
    picture = Image.new("RGB", (230 + random.randrange(80), 230 + random.randrange(80)))
    picture.putdata([(x * 7 % 256, x * x % 251, i * 6) for x in range(picture.width * picture.height)])
    picture.save(name)
