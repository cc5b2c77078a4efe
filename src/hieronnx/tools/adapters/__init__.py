"""Running the tools of others: a folder and files to work in, and calibration inputs."""
