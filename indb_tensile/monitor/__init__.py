"""What people watch while jobs run, as one database role sees it: for the page in a browser and for `tensile top`.

It reads the catalog and acts by the same SQL functions as any client, on the role's own connections, so row-level
security decides what is seen.
"""
