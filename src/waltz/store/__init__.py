"""The replicated log as a server sees it: quorum writes, recovery, catch-up, reads."""
