"""Generated from proto/ by scripts/build_protos.py."""
