"""What the tools of others need to run: a folder and files to work in, calibration inputs."""
