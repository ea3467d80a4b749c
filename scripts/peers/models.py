"""The model in each format: the file that was given, and files made from it once and kept."""
import pathlib

from .common import CACHE, say


class Model:
    """A GGUF file whose name ends in its format: NAME.FORMAT.gguf."""

    def __init__(self, path, convert):
        self.path = pathlib.Path(path)
        self.name, _, self.form = self.path.stem.rpartition(".")
        self.convert = convert

    def gguf(self, form):
        """The model as a GGUF file of this format."""
        if form == self.form:
            return self.path
        return self.made(f"{form}.gguf", lambda target: self.convert(self.path, target, form))

    def made(self, ending, make):
        """A file or folder made from the model; one that is only half made is not kept."""
        target = CACHE / "models" / f"{self.name}.{self.form}-{self.path.stat().st_size}.{ending}"
        if not target.exists():
            say(f"making {target.name} ...")
            target.parent.mkdir(parents=True, exist_ok=True)
            half = target.with_name(f"half.{target.name}")
            make(half)
            half.rename(target)
        return target
