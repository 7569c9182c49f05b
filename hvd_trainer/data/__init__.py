"""L2: which sample comes when, for any number of ranks the same, and the loader that fetches a rank's share."""
