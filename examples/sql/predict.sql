\echo 'true values and predictions'
select label as digit, tensile_predict('digits', d) as predicted from digits as d order by id limit 5;
select target as diagnosis, tensile_predict_label('breast_cancer', b) as predicted
  from breast_cancer as b where id % 100 = 1 order by id limit 5;
select target as progression, round(tensile_predict('diabetes', d)) as predicted
  from diabetes as d order by id limit 5;
