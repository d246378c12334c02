-- Defines three networks whose width and depth make memory scarce. Each training adds a version to a model.
select tensile_create_model('digits',
         '{"type": "cnn", "channels": [64], "depth": 12, "hidden": [256], "dropout": 0.2}',
         '{"epochs": 12, "batch_size": 448, "learning_rate": 0.002}')
 where not exists (select from tensile.model_list where model = 'digits');

select tensile_create_model('breast_cancer',
         '{"type": "mlp", "hidden": [2048, 2048, 2048, 2048], "dropout": 0.2}',
         '{"epochs": 12, "batch_size": 64, "learning_rate": 0.0001}')
 where not exists (select from tensile.model_list where model = 'breast_cancer');

select tensile_create_model('diabetes',
         '{"type": "mlp", "hidden": [2048, 2048, 2048, 2048], "dropout": 0.2}',
         '{"epochs": 12, "batch_size": 64, "learning_rate": 0.0001, "clip_norm": 1.0}')
 where not exists (select from tensile.model_list where model = 'diabetes');
