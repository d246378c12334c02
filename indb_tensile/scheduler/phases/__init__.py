"""Jobs side by side: iterations shifted in time, and the gates that keep them so."""
