"""Controllers, devices and catalogs in virtual time, for `tensile bench trace` and `tensile bench controllers`."""
