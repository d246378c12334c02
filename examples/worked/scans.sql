-- Which digit is on the scan? A network learns from image files in a column of bytea, and broken files are left out.
--
--   .venv/bin/tensile psql -f examples/worked/scans.sql
--
-- The scans are the data set digits of scikit-learn, 1,797 digits of 8 x 8 pixels, written here as BMP files. Your own
-- files come from a client, as parameters of an insert, or from pg_read_binary_file().
\if :{?epochs}
\else
  \set epochs 40
\endif
set client_min_messages = warning;
select tensile_load_dataset('digits') where to_regclass('digits') is null;
drop table if exists scans;
create table scans (id int primary key, file bytea, digit int);
-- A BMP of 8 x 8 pixels is a header of 54 bytes, a palette of 256 greys, and one byte for each pixel.
insert into scans
select id, decode('424d760400000000000036040000' || '2800000008000000f8ffffff01000800'
                  || '000000004000000000000000000000000000000000000000'
                  || (select string_agg(repeat(lpad(to_hex(grey), 2, '0'), 3) || '00', '' order by grey)
                        from generate_series(0, 255) as grey)
                  || (select string_agg(lpad(to_hex((pixel * 255 / 16)::int), 2, '0'), '' order by place)
                        from unnest(pixels) with ordinality as p(pixel, place)), 'hex'), label
  from digits;
update scans set file = substr(file, 1, 1100) where id in (7, 70, 700);  -- a transfer that broke off
grant select on scans to tensile_reader;

\echo 'the training images are shifted and turned anew in each epoch; broken files are skipped'
call tensile_train_and_wait('scans', 'scans', 'digit', task => 'classification', features => array['file'],
  preprocess => '{"on_error": "skip"}',
  hyperparams => jsonb_build_object('epochs', :epochs, 'augment_shift', 0.1, 'augment_rotation', 10));
select architecture ->> 'type' as network, metric_name, round(metric::numeric, 4) as metric
  from tensile_training_info('scans') order by version desc limit 1;
select section, fact, value, warning
  from tensile_data_report((select max(job_id) from tensile.stat_jobs where model = 'scans'))
 where subject = 'file' or section = 'result';

\echo 'digits that it mistakes for others, among scans that it has not seen'
select * from tensile_confusion_matrix('scans') where actual <> predicted order by rows desc, actual limit 5;

\echo 'what it reads on some scans, and how sure it is; there is no answer for the broken file'
select s.id, s.digit, p.label as read, round((p.probabilities ->> p.label)::numeric, 3) as probability
  from tensile_predict_table('scans', 'scans', with_probabilities => true) as p
  join scans as s on s.id = (p.key ->> 'id')::int
 where s.id between 5 and 9 order by s.id;

\echo 'the scans that look most like the first one to the network'
with vectors as materialized (select id, digit, tensile_embed('scans', s) as vector from scans as s where id <= 300)
select b.id, b.digit, round((select sum(x * y) / sqrt(sum(x * x) * sum(y * y))
                               from unnest(a.vector, b.vector) as v(x, y))::numeric, 4) as cosine
  from vectors as a, vectors as b
 where a.id = 1 and b.id <> 1 and b.vector is not null order by cosine desc limit 5;
