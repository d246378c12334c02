"""Devices without torch: back ends, memory regions, links, hardware, driver libraries and limits."""
