"""Find the App that MODULE:APP names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback

from worker_runtime.app import App
from worker_runtime.binding import RegistrationError


class AppImportError(Exception):
    """The app cannot be imported. The text names what was looked for and where."""


def load_app(target: str) -> App:
    """Import MODULE:APP (APP defaults to `app`), from the working directory too.
    Raises AppImportError, or RegistrationError when a job in it cannot be registered."""
    module_name, _, attribute = target.partition(":")
    attribute = attribute or "app"
    here = os.getcwd()  # noqa: PTH109 - sys.path holds strings
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except RegistrationError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise AppImportError(
                f"No module {error.name!r}: {target!r} was looked for in {here} and on the Python path. "
                "Start it where the module is, or set PYTHONPATH."
            ) from None
        raise AppImportError(f"{module_name} imports {error.name!r}, which is not installed.") from None
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError):
            # The traceback ends in the importer; the file that cannot be read is in the error.
            filename, line = error.filename, error.lineno
        else:
            where = traceback.extract_tb(error.__traceback__)[-1]
            filename, line = where.filename, where.lineno
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        raise AppImportError(
            f"Importing {module_name} raised {type(error).__name__}: {text} ({filename}, line {line})."
        ) from error
    try:
        app = getattr(module, attribute)
    except AttributeError:
        apps = [name for name, value in vars(module).items() if isinstance(value, App)]
        raise AppImportError(
            f"The module {module_name} has no {attribute!r}; "
            + (f"it has the app {apps[0]!r}: say {module_name}:{apps[0]}." if apps else "it has no App.")
        ) from None
    if not isinstance(app, App):
        raise AppImportError(f"{target} is a {type(app).__name__}, not a worker_runtime.App.")
    return app
