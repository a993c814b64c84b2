"""Errors that are the user's to fix, and how a command line shows them: in one line, and with an exit status."""
import argparse
import contextlib
import difflib
import os
import signal
import sys


class UserError(Exception):
    """A mistake that the user can fix: the command line shows it as one line and exits with status 2."""


class ExperimentFailed(Exception):
    """One or more experiments ended with an error, which has been shown."""


def nearest(word, names):
    """' (nearest: ...)' with the names most similar to a misspelt word, or '' if none is similar."""
    names = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), names, n=3)
    return f' (nearest: {", ".join(names[name] for name in close)})' if close else ''


class ArgumentParser(argparse.ArgumentParser):
    """argparse's, without abbreviations, and with UserErrors that name what is nearest to an unknown flag."""

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, **{'formatter_class': argparse.RawDescriptionHelpFormatter, **kwargs})

    def parse_args(self, args=None, namespace=None):
        """Positional arguments may stand between flags."""
        args, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            near = nearest(unknown[0], self._option_string_actions)
            raise UserError(f'unknown argument {unknown[0]}{near}; --help shows them all')
        return args

    def error(self, message):
        raise UserError(message)


@contextlib.contextmanager
def one_line_errors(program, hint=''):
    """Show a mistake of the user as one line, by process 0 alone, and exit with 2; with 1 if experiments failed, and
    with 130 if interrupted (Ctrl-C, or SIGTERM)."""
    def leave(status, line):
        rank = os.getenv('PMI_RANK') or os.getenv('OMPI_COMM_WORLD_RANK') or '0'        # MPI itself may be the mistake
        if rank == '0' and not (status == 130 and os.getenv('STARTED_BY_MPI_FORK')):     # whose parent reports it
            print(f'{program}: {" ".join(line.split())}', file=sys.stderr)
        sys.exit(status)
    with contextlib.suppress(ValueError):                   # only the main thread can set signal handlers
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except UserError as error:
        leave(2, f'error: {error}')
    except ExperimentFailed as error:
        leave(1, str(error))
    except KeyboardInterrupt:
        leave(130, 'interrupted' + hint)
    except BrokenPipeError:                                 # whoever read the output, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())      # what is left in it goes nowhere
        sys.exit(128 + signal.SIGPIPE)
