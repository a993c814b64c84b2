"""Errors that are the user's to fix, and how a command line shows them: in one line, and with an exit status."""
import argparse
import contextlib
import difflib
import os
import re
import shutil
import signal
import sys
import textwrap
from types import SimpleNamespace

STOP_SIGNALS = signal.SIGINT, signal.SIGTERM
command = SimpleNamespace(program='python', hint='')        # the arguments of one_line_errors, while inside it


class UserError(Exception):
    """A mistake that the user can fix: the command line shows it as one line and exits with status 2."""


class ExperimentFailed(Exception):
    """One or more experiments ended with an error, which has been shown."""


class Ended(SystemExit):
    """The end of a process that has said why."""


class EndedInNotebook(Exception):
    """Ends a cell of a notebook, which shows it as one line."""
    def _render_traceback_(self):                           # which IPython asks for
        return [str(self)]


def in_notebook():
    """Whether this is the kernel of a notebook."""
    return 'IPython' in sys.modules and hasattr(sys.modules['IPython'].get_ipython(), 'kernel')


def nearest(word, names):
    """' (nearest: ...)' with the names that begin with a word or are most similar to it; '' if there are none."""
    word, names = word.lower()[:100], {name.lower(): name for name in names}
    longer = [name for name in names if len(word) > 4 and name.startswith(word)]        # --steps of --steps_per_epoch
    close = list(dict.fromkeys([*longer, *difflib.get_close_matches(word, names, n=3)]))[:3]
    return f' (nearest: {", ".join(names[name] for name in close)})' if close else ''


def printable(text, longest=300):
    """A text of unknown origin on one line, not too long, its control characters escaped: 'a\\x1b[2J'."""
    text = ''.join(c if c.isprintable() else c.encode('unicode_escape').decode() for c in ' '.join(str(text).split()))
    return text if len(text) <= longest else f'{text[:longest - 40]} ... {text[-30:]}'


def terminal_width():
    """The width of what is printed: the terminal's, but never too wide to read."""
    return min(120, shutil.get_terminal_size().columns)


def fill(text, width):
    """The text wrapped at this width, except for indented lines."""
    return re.sub(r'^\S.*(\n\S.*)*', lambda prose: textwrap.fill(prose[0], width), text, flags=re.MULTILINE)


class ArgumentParser(argparse.ArgumentParser):
    """argparse's, without abbreviations, and with UserErrors that name the flags nearest to an unknown one."""

    def __init__(self, description='', epilog='', **kwargs):
        description, epilog = fill(description, terminal_width()), fill(epilog, terminal_width())
        super().__init__(allow_abbrev=False, description=description, epilog=epilog,
                         **{'formatter_class': argparse.RawDescriptionHelpFormatter, **kwargs})

    def parse_args(self, args=None, namespace=None):
        """Positional arguments may stand between flags."""
        args, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            near = nearest(unknown[0], self._option_string_actions)
            raise UserError(f'unknown argument {unknown[0]}{near}; --help shows them all')
        return args

    def error(self, message):
        raise UserError(message)


def on_stop_signals(handler):
    """Let Ctrl-C and SIGTERM call `handler`, except where they are to be ignored, as under nohup. Returns whether that
    worked: only the main thread can do it."""
    with contextlib.suppress(ValueError):
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)
        return True
    return False


@contextlib.contextmanager
def one_line_errors(program, hint=''):
    """Show a user's mistake as one line (from process 0 alone if all make it) and exit with status 2; with 1 if
    experiments failed; with 130 and the hint if interrupted (Ctrl-C or SIGTERM). Only a program with a hint on how to
    go on is asked to stop before it is interrupted: see common/stopping.py. In a notebook, only the cell ends."""
    def leave(status, line):
        from common.stopping import end_together
        line = f'{program}: {printable(line, longest=2000)}'
        if in_notebook():
            raise EndedInNotebook(line)
        on_stop_signals(signal.SIG_IGN)                     # it is ending already
        end_together(line, status)
    before, handlers = vars(command).copy(), {number: signal.getsignal(number) for number in STOP_SIGNALS}
    vars(command).update(program=program, hint=hint)
    on_stop_signals(signal.default_int_handler)
    try:
        yield
    except UserError as error:
        leave(2, f'error: {error}')
    except ExperimentFailed as error:
        leave(1, str(error))
    except KeyboardInterrupt as error:
        leave(130, f'interrupted {error}'.strip() + hint)
    except SystemExit as error:
        if in_notebook() and not error.code:                # --help
            return
        from common.stopping import several
        if several.world and not isinstance(error, Ended):
            leave(error.code if isinstance(error.code, int) and error.code else 1, f'error: sys.exit({error.code!r})')
        raise
    except BrokenPipeError:                                 # whoever read the output, such as head, has had enough
        from common.stopping import several
        if several.world:                                   # their output goes to mpirun: this is another pipe
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())      # the rest is discarded
        sys.exit(128 + signal.SIGPIPE)
    finally:
        vars(command).update(before)
        with contextlib.suppress(ValueError, TypeError):    # another thread; a handler that is not Python's
            for number, handler in handlers.items():
                signal.signal(number, handler)
