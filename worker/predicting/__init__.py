"""Jobs of tensile_predict_into: a trainer's process predicts a relation on the processor and fills a table."""
