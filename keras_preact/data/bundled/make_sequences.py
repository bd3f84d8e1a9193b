"""Writes reviews.txt.gz and weather.csv.gz from the packages that ship the data.

pip download --no-deps --no-binary :all: vaderSentiment==3.3.2
pip download --no-deps pvlib==0.16.1
python make_sequences.py vaderSentiment-3.3.2.tar.gz pvlib-0.16.1-py3-none-any.whl
"""

import csv
import gzip
import io
import sys
import tarfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
WEATHER = ("Dry-bulb (C)", "Dew-point (C)", "RHum (%)", "Pressure (mbar)", "Wspd (m/s)", "GHI (W/m^2)")


def write(path: Path, text: str) -> None:
    """Compress without time and name, so that the same data give the same file."""
    path.write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))


def reviews(archive: Path) -> str:
    """Return one line per sentence: the mean of twenty people's ratings from -4 to 4, a tab, the sentence."""
    with tarfile.open(archive) as outer:
        inner = next(member for member in outer if member.name.endswith("hutto_ICWSM_2014.tar.gz"))
        with tarfile.open(fileobj=outer.extractfile(inner)) as files:
            name = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
            member = files.extractfile(name)
            assert member is not None
            lines = member.read().decode("utf-8").splitlines()
    rows = (line.split("\t", 2) for line in lines if line.strip())
    return "".join(f"{float(rating):.2f}\t{' '.join(text.split())}\n" for _, rating, text in rows)


def weather(wheel: Path) -> str:
    """Return one line per hour of the typical year of Greensboro, North Carolina, with the columns of WEATHER."""
    with zipfile.ZipFile(wheel) as files:
        text = files.read("pvlib/data/723170TYA.CSV").decode("ascii")
    _, header, *rows = csv.reader(io.StringIO(text))
    columns = [header.index(name) for name in WEATHER]
    return "".join(",".join(row[column] for column in columns) + "\n" for row in rows)


if __name__ == "__main__":
    write(HERE / "reviews.txt.gz", reviews(Path(sys.argv[1])))
    write(HERE / "weather.csv.gz", weather(Path(sys.argv[2])))
