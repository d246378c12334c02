-- Functions that explain models: figures of how a version errs, and what its columns add to a prediction. All are
-- security invoker, so rows come through the caller's own session. Figures of held-out rows are stored by the training,
-- and policies say who reads them.

create function tensile.figure_rows(
  figure text, model text, relation oid, version integer, options jsonb, callers_path text
) returns setof jsonb
  language plpgsql volatile parallel unsafe rows 100
as $$
declare
  answer jsonb;
begin
  perform public.tensile_require_role('tensile_user');
  answer := tensile.call('figure', options || jsonb_build_object(
    'figure', figure, 'model', model, 'version', version, 'relation', relation::bigint,
    'search_path', callers_path));
  return query
  select entry.value from jsonb_array_elements(answer -> 'rows') with ordinality as entry (value, place)
   order by entry.place;
end
$$;
comment on function tensile.figure_rows(text, text, oid, integer, jsonb, text) is
  'implements tensile_confusion_matrix and like functions: returns each row of the figure as a list; reads a view under the '
  'caller''s search_path, because the view''s functions may need it';

create function public.tensile_confusion_matrix(
  model text, relation regclass default null, version integer default null, label text default null
) returns table (actual text, predicted text, rows bigint)
  language sql volatile parallel unsafe rows 100
begin atomic
  select f.row ->> 0, f.row ->> 1, (f.row ->> 2)::bigint
    from tensile.figure_rows('confusion_matrix', model, relation::oid, version,
                             pg_catalog.jsonb_build_object('label', label),
                             pg_catalog.current_setting('search_path')) as f (row);
end;
comment on function public.tensile_confusion_matrix(text, regclass, integer, text) is
  'returns how many rows of each label are predicted as each label, for the pairs that occur, on the rows of a '
  'relation; with a label, how many rows have it and get it, as true and false, which a model of sets of labels needs; '
  'without a relation, on the held-out rows of the training, which only the owner of the model may see';

create function public.tensile_roc_curve(
  model text, label text default null, relation regclass default null, version integer default null
) returns table (
  class text, threshold double precision, true_positive_rate double precision, false_positive_rate double precision,
  true_positives bigint, false_positives bigint
)
  language sql volatile parallel unsafe rows 200
begin atomic
  select f.row ->> 0, (f.row ->> 1)::double precision, (f.row ->> 2)::double precision,
         (f.row ->> 3)::double precision, (f.row ->> 4)::bigint, (f.row ->> 5)::bigint
    from tensile.figure_rows('roc_curve', model, relation::oid, version,
                             pg_catalog.jsonb_build_object('label', $2),
                             pg_catalog.current_setting('search_path')) as f (row);
end;
comment on function public.tensile_roc_curve(text, text, regclass, integer) is
  'returns at most 200 points of the ROC curve of a label, or of all labels (of two, of the second), on the rows of a '
  'relation; without a relation, on the held-out rows of the training, which only the owner of the model may see';

create function public.tensile_calibration(
  model text, relation regclass default null, version integer default null, bins integer default 15,
  label text default null
) returns table (bin integer, mean_predicted double precision, observed_share double precision, rows bigint)
  language sql volatile parallel unsafe rows 15
begin atomic
  select (f.row ->> 0)::integer, (f.row ->> 1)::double precision, (f.row ->> 2)::double precision,
         (f.row ->> 3)::bigint
    from tensile.figure_rows('calibration', model, relation::oid, version,
                             pg_catalog.jsonb_build_object('bins', bins, 'label', label),
                             pg_catalog.current_setting('search_path')) as f (row);
end;
comment on function public.tensile_calibration(text, regclass, integer, integer, text) is
  'returns for bins of a probability its mean, the share of rows for which it came true, and the rows: of the '
  'probability of a label, else of the predicted label, or of all labels of sets together; on the rows of a relation, '
  'or without one on the held-out rows of the training';

create function public.tensile_label_metrics(
  model text, relation regclass default null, version integer default null, label text default null
) returns table (name text, metric text, value double precision, rows bigint)
  language sql volatile parallel unsafe rows 100
begin atomic
  select f.row ->> 0, f.row ->> 1, (f.row ->> 2)::double precision, (f.row ->> 3)::bigint
    from tensile.figure_rows('label_metrics', model, relation::oid, version,
                             pg_catalog.jsonb_build_object('label', label),
                             pg_catalog.current_setting('search_path')) as f (row);
end;
comment on function public.tensile_label_metrics(text, regclass, integer, text) is
  'returns the metrics of each class, of each label of sets, or of each of several targets by itself, and the rows that '
  'have it, on the rows of a relation; without a relation, on the held-out rows of the training, which only the owner '
  'of the model may see';

create function public.tensile_feature_importance(
  model text, relation regclass default null, version integer default null, repeats integer default null,
  seed bigint default null, label text default null
) returns table (feature text, importance double precision, deviation double precision, metric text)
  language sql volatile parallel unsafe rows 30
begin atomic
  select f.row ->> 0, (f.row ->> 1)::double precision, (f.row ->> 2)::double precision, f.row ->> 3
    from tensile.figure_rows('feature_importance', model, relation::oid, version,
                             pg_catalog.jsonb_build_object('repeats', repeats, 'seed', seed, 'label', label),
                             pg_catalog.current_setting('search_path')) as f (row);
end;
comment on function public.tensile_feature_importance(text, regclass, integer, integer, bigint, text) is
  'returns by how much the model''s metric gets worse if the values of a feature are permuted among the rows: the mean '
  'and the deviation over some permutations, on at most 5000 rows of a relation; without a relation, on the held-out '
  'rows of the training; with a label of a set, or one of several targets, by the metric of that one';

create function public.tensile_forecast_metrics(
  model text, version integer default null
) returns table (
  target text, step integer, metric text, value double precision, naive double precision,
  seasonal_naive double precision, exponential_smoothing double precision
)
  language sql volatile parallel unsafe rows 100
begin atomic
  select f.row ->> 0, (f.row ->> 1)::integer, f.row ->> 2, (f.row ->> 3)::double precision,
         (f.row ->> 4)::double precision, (f.row ->> 5)::double precision, (f.row ->> 6)::double precision
    from tensile.figure_rows('forecast', model, null::oid, version, '{}',
                             pg_catalog.current_setting('search_path')) as f (row);
end;
comment on function public.tensile_forecast_metrics(text, integer) is
  'returns the metrics of each step of a forecast on the steps that were held out of the training, from every origin of '
  'them, beside those of forecasts that need no training';

create function tensile.attributions(
  model text, input anycompatible, version integer, label text, seed bigint
) returns jsonb
  language plpgsql stable parallel unsafe
  set lock_timeout = '2s'
as $$
declare
  fault jsonb;
begin
  if pg_column_size(input) >= 32768 then
    fault := tensile.row_fault(input, 1);
    if fault is not null then
      return fault;
    end if;
  end if;
  return tensile.answer('explain_prediction', jsonb_build_object(
    'model', model, 'version', version, 'label', label, 'seed', seed,
    'form', tensile.row_form(pg_typeof(input))), array[to_jsonb(input)]);
end
$$;
comment on function tensile.attributions(text, anycompatible, integer, text, bigint) is
  'implements tensile_explain_prediction: returns the bridge''s answer with a list for each column, or with an error';

create function public.tensile_explain_prediction(
  model text, input anycompatible, version integer default null, label text default null, seed bigint default 0
) returns table (
  feature text, attribution double precision, error double precision, class text, baseline double precision,
  prediction double precision
)
  language plpgsql stable parallel unsafe rows 30
as $$
declare
  answer jsonb;
begin
  @REQUIRE_USER@
  answer := tensile.attributions(model, input, version, label, seed);
  @RAISE_ANSWER@
  return query
  select entry.value ->> 0, (entry.value ->> 1)::double precision, (entry.value ->> 2)::double precision,
         entry.value ->> 3, (entry.value ->> 4)::double precision, (entry.value ->> 5)::double precision
    from jsonb_array_elements(answer #> '{result,rows}') with ordinality as entry (value, place)
   order by entry.place;
end
$$;
comment on function public.tensile_explain_prediction(text, anycompatible, integer, text, bigint) is
  'explains the prediction for a row by Shapley values: returns what each feature adds to the value, or to the '
  'probability of a label (of the predicted one by default). The attributions sum to the prediction for the row less '
  'that for a baseline row, which has the mean or most frequent values of the training';
