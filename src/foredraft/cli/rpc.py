"""`foredraft rpc-server` and `foredraft rpc-build`: a model's layers on several machines."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import click

from foredraft.backends.cpu import physical_cores
from foredraft.backends.llamacpp.native import rpc_build
from foredraft.backends.llamacpp.native.build import BuildError
from foredraft.cli.interrupt import terminable
from foredraft.cli.options import llama_library_option
from foredraft.cli.paths import cache_dir
from foredraft.cli.values import Whole
from foredraft.config import MOST_THREADS, RPC_PORT
from foredraft.errors import BackendError


@click.command("rpc-build")
@click.option("--sdist", type=click.Path(path_type=Path), metavar="FILE", default=None,
              help="The source distribution of xllamacpp, instead of downloading it.")  # fmt: skip
def build(sdist: Path | None) -> None:
    """Compile llama.cpp's RPC backend, once, for --rpc and rpc-server.

    It needs a C++ compiler, and pip, which downloads llama.cpp's sources (38 MB). The result goes to where
    Foredraft is installed, or to the cache folder if nothing can be written there.
    """
    if (found := rpc_build.find(cache_dir())) is not None:
        click.echo(f"{found} is there already.")
        return
    try:
        with tempfile.TemporaryDirectory() as folder:
            if sdist is None:
                click.echo("Downloading the sources of xllamacpp (about a minute).", err=True)
                sdist = rpc_build.download(Path(folder))
            click.echo("Compiling; about half a minute.", err=True)
            click.echo(rpc_build.compile_library(sdist, rpc_build.place(cache_dir())))
    except (BuildError, OSError) as error:
        raise BackendError(f"llama.cpp's RPC backend was not compiled: {error}.") from None


@click.command("rpc-server")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=Whole(0, 65535),
    default=RPC_PORT,
    show_default=True,
    help="The port to listen on; 0 takes a free one.",
)
@click.option(
    "--threads",
    "-t",
    type=Whole(0, MOST_THREADS),
    default=0,
    show_default="physical cores",
    help="CPU threads of each client's computations.",
)
@click.option(
    "--cache", is_flag=True, help="Keep large weights that clients send, so that they are sent once only."
)
@llama_library_option
def server(*, host: str, port: int, threads: int, cache: bool, llama_library: Path | None) -> None:
    """Compute layers of models that other machines run with --rpc.

    Serves this machine's GPUs, or its processor if it has none, until Ctrl-C. There is no authentication and
    no encryption: anyone who can connect can read and write its memory.
    """
    from foredraft.backends.llamacpp import binding
    from foredraft.backends.llamacpp.rpc.library import library
    from foredraft.backends.llamacpp.rpc.server import RPCServer, Serving

    binding.choose(llama_library)
    library(cache_dir())
    kept = cache_dir() / "rpc" if cache else None
    serving = Serving(
        host=host,
        port=port,
        threads=threads or physical_cores(),
        cache=kept,
        own_cache=cache_dir(),
        llama_library=binding.chosen(),
    )
    served = RPCServer(serving, lambda line: click.echo(line, err=True))
    if not served.on_loopback:
        click.secho(
            "Warning: RPC has no password and no encryption. Anyone who can reach this port can take over "
            "this process. Use it in a network of your own only, or over WireGuard or 'ssh -L'.",
            fg="yellow",
            err=True,
        )
    click.echo(f"Serving RPC on {host}:{served.port}. Ctrl-C ends it.", err=True)
    with closing(served), terminable():
        served.run()
