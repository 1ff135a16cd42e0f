#!/bin/sh
# The command `sluice` of a checkout. `make setup` copies this file to .venv/bin/sluice.
bin=$(cd "$(dirname "$0")" && pwd) || exit
export PYTHONPATH="${bin%/*/*}/include${PYTHONPATH:+:$PYTHONPATH}"
exec "$bin/python" -P -c 'import sys; sys.argv[0] = "sluice"; from sluice.cli.main import main; sys.exit(main())' "$@"
