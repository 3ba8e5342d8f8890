"""Bytes on a connection become messages here, and messages bytes; nothing else happens here.

Owns frames, the handshake and every message of the client, storage and admin protocols, each
declared once. Must not know who sends what when: that is the business of the machines.
"""
