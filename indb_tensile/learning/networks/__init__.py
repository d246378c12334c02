"""Networks, ensembles and estimators, their losses and hyper-parameters."""
