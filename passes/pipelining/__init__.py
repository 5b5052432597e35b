"""What tile-pipeline-loads needs to know about the copies that it starts early."""
