"""One file a policy: from jobs, device and budget to plans."""
