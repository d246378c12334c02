-- Versions out of files, as `tensile models import` writes them: the owner of a model inserts a version without a job, its
-- preprocessing and its weights.
--
-- Nothing here trusts the rows. A worker that loads a version without a job compares its description with its tensors
-- before it builds anything (indb_tensile/learning/models/stored_model_check.py). What cannot be checked so has rules here: the
-- state of a model of scikit-learn is data for compiled code, so only administrators import one; a network with registered
-- weights would get round the privilege on these; and no column can be written that holds SQL.

grant insert (model_id, number, task, target, architecture, metric_name, metric, higher_is_better, metrics, parameters,
  weights_bytes, weights_digest) on tensile.model_versions to tensile_user;
grant insert (version_id, bundle) on tensile.version_bundles to tensile_user;
grant insert (version_id, chunk_no, chunk) on tensile.artifacts to tensile_user;

create policy versions_imported on tensile.model_versions for insert to tensile_user
  with check (job_id is null and not deployed
              and weights_digest is not null and weights_bytes <= 1073741824
              and octet_length(architecture::text) <= 262144 and octet_length(metrics::text) <= 262144
              and length(target) <= 1000 and coalesce(length(metric_name), 0) <= 1000 and task::text in ('classification', 'regression', 'multilabel')
              and architecture ->> 'type' <> 'pretrained'
              and (architecture ->> 'type' not in ('boosting', 'linear')
                   or pg_has_role('tensile_admin', 'usage'))
              and exists (select from tensile.models as m
                           where m.model_id = model_versions.model_id
                             and m.owner_oid = (select tensile.current_role_oid())
                             and m.installation = (select tensile.installation()) and m.dropped_at is null));
create policy bundles_imported on tensile.version_bundles for insert to tensile_user
  with check (octet_length(bundle::text) <= 67108864
              and exists (select from tensile.model_versions as v join tensile.models as m on m.model_id = v.model_id
                           where v.version_id = version_bundles.version_id and v.job_id is null
                             and m.owner_oid = (select tensile.current_role_oid())
                             and m.installation = (select tensile.installation())));
create policy artifacts_imported on tensile.artifacts for insert to tensile_user
  with check (exists (select from tensile.model_versions as v join tensile.models as m on m.model_id = v.model_id
                       where v.version_id = artifacts.version_id and v.job_id is null
                         and artifacts.chunk_no < (v.weights_bytes + 8388607) / 8388608
                         and m.owner_oid = (select tensile.current_role_oid())
                         and m.installation = (select tensile.installation())));
