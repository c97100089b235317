"""`python -m computepool.hub.rpc`: started by a hub, which tells it everything by its standard input."""

import sys

try:
    from computepool.hub.rpc.main import main
except ImportError as error:
    print(f"error: gRPC needs more packages ({error}). Install them: pip install 'computepool[hub]'", file=sys.stderr)
    sys.exit(2)
sys.exit(main())
