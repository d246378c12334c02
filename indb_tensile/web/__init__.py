"""The web page of `tensile web`: devices, queue, jobs and models as one database role sees them, and /metrics.

The page reads only the catalog, and acts only through the same SQL functions as any client, on connections of the
viewer's own database role. So row-level security decides what a viewer sees, and the page has no rights of its own.
"""
