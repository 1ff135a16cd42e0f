"""Servers that tests start on loopback: real ones where a service can run here, small stand-ins for the rest."""
