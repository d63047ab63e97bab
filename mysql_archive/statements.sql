-- Statements of the archive, by name. The first comment line of each says what it takes -> what it gives or does.
-- MySQL 8 and MariaDB 10.6 both run them. A parameter is %s; of `IN %s` it is a list.

-- name: lock_incarnation
-- queue, shard -> number, epoch and lost_epoch of the current incarnation, locked until the end of the transaction
SELECT number, epoch, lost_epoch FROM incarnations WHERE queue = %s AND shard = %s AND ended = 0 FOR UPDATE

-- name: insert_incarnation
-- queue, shard, epoch -> the number of a new current incarnation; a duplicate if there is one
INSERT INTO incarnations (queue, shard, epoch) VALUES (%s, %s, %s)

-- name: number_apart
-- number -> the restores of this incarnation get higher numbers than those of earlier ones
UPDATE incarnations SET last_restore = number << 32 WHERE number = %s

-- name: set_epoch
-- epoch, number -> the incarnation goes on under another epoch, and keeps the highest one before as lost_epoch
UPDATE incarnations SET lost_epoch = GREATEST(lost_epoch, epoch), epoch = %s WHERE number = %s

-- name: last_batch
-- nothing -> the number of the last batch of all; NULL if there is none
SELECT MAX(number) FROM batches

-- name: end_incarnation
-- number -> the incarnation is over; its rows never come back
UPDATE incarnations SET ended = number WHERE number = %s

-- name: check_shared
-- number -> its epoch if it is current; nobody ends it and no restore begins until the end of the transaction
SELECT epoch FROM incarnations WHERE number = %s AND ended = 0 LOCK IN SHARE MODE

-- name: check_exclusive
-- number -> its epoch if it is current; besides, no batch commits until the end of the transaction
SELECT epoch FROM incarnations WHERE number = %s AND ended = 0 FOR UPDATE

-- name: insert_batch
-- name, incarnation, state, created_ms, ids -> the number of the batch; a duplicate if it has a row
INSERT INTO batches (batch, incarnation, state, created_ms, ids) VALUES (%s, %s, %s, %s, %s)

-- name: insert_jobs
-- one row a job: the columns in this order -> the rows of a batch
INSERT INTO jobs
  (incarnation, batch, id, priority, run_after_ms, sixteenths, attempts, attempts_left, updated_ms, crashes, status,
   body)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: select_batch
-- name -> the state of the batch
SELECT state FROM batches WHERE batch = %s

-- name: select_committed
-- incarnation -> the names of its COMMITTED batches, and the ids of their jobs
SELECT batch, ids FROM batches WHERE incarnation = %s AND state = 1 ORDER BY number

-- name: lock_committed
-- name -> a row if the batch is COMMITTED; it stays so until the end of the transaction
SELECT 1 FROM batches WHERE batch = %s AND state = 1 FOR UPDATE

-- name: delete_of_batch
-- name, id -> the job loses its row in the batch
DELETE jobs FROM batches
STRAIGHT_JOIN jobs FORCE INDEX (PRIMARY) ON jobs.incarnation = batches.incarnation AND jobs.batch = batches.number
WHERE batches.batch = %s AND jobs.id = %s

-- name: finalize_batches
-- names -> those that are COMMITTED are FINALIZED, and forget their ids
UPDATE batches SET state = 2, ids = '' WHERE state = 1 AND batch IN %s

-- name: select_due
-- incarnation, priority, least ms, most ms, limit
-- -> id, bytes (body, status) and batch number of jobs that may come back, in their old order
SELECT jobs.id, jobs.bytes, jobs.batch
FROM jobs FORCE INDEX (restore_order) LEFT JOIN batches ON batches.number = jobs.batch AND batches.state = 1
WHERE jobs.incarnation = %s AND jobs.priority = %s AND jobs.run_after_ms >= %s AND jobs.run_after_ms <= %s
  AND batches.number IS NULL
ORDER BY jobs.run_after_ms, jobs.sixteenths, jobs.id LIMIT %s

-- name: select_jobs_by_id
-- incarnation, last_batch, ids -> batch number, and the columns of each job, of batches up to last_batch
SELECT batch, id, priority, run_after_ms, sixteenths, attempts, attempts_left, updated_ms, crashes, status, body
FROM jobs FORCE INDEX (PRIMARY)
WHERE incarnation = %s AND batch <= %s AND id IN %s
ORDER BY run_after_ms, sixteenths, id

-- name: select_restores
-- incarnation -> number, last_batch and ids of its open restores
SELECT number, last_batch, ids FROM restores WHERE incarnation = %s ORDER BY number

-- name: number_restore
-- incarnation -> the next number of a restore
UPDATE incarnations SET last_restore = LAST_INSERT_ID(last_restore + 1) WHERE number = %s

-- name: insert_restore
-- incarnation, number, last_batch, ids, created_ms -> an open restore
INSERT INTO restores (incarnation, number, last_batch, ids, created_ms) VALUES (%s, %s, %s, %s, %s)

-- name: delete_jobs_by_id
-- incarnation, last_batch, ids -> the jobs lose their rows in batches up to last_batch
DELETE FROM jobs WHERE incarnation = %s AND batch <= %s AND id IN %s

-- name: delete_restore
-- incarnation, number -> the restore has ended
DELETE FROM restores WHERE incarnation = %s AND number = %s

-- name: select_migrations
-- nothing -> number and works_from of the migrations that were applied
SELECT number, works_from FROM migrations ORDER BY number

-- name: insert_migration
-- number, works_from, applied_ms -> the migration was applied
INSERT INTO migrations (number, works_from, applied_ms) VALUES (%s, %s, %s)

-- name: has_migrations
-- nothing -> a row if the database has the table `migrations`
SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'migrations'

-- name: lock_migrations
-- seconds -> 1 if this connection alone may migrate this database, 0 if another one does; its end gives the lock back
SELECT GET_LOCK(CONCAT('pinlater:', SHA1(DATABASE())), %s)

-- name: unlock_migrations
-- nothing -> others may migrate this database
SELECT RELEASE_LOCK(CONCAT('pinlater:', SHA1(DATABASE())))

-- name: last_restore
-- incarnation -> the number of its last restore
SELECT last_restore FROM incarnations WHERE number = %s

-- name: last_ended
-- incarnation -> the number up to which all its restores have ended
SELECT COALESCE((SELECT MIN(number) - 1 FROM restores WHERE restores.incarnation = incarnations.number), last_restore)
FROM incarnations WHERE number = %s

-- name: select_incarnation
-- queue, shard -> number, epoch and lost_epoch of the current incarnation, and the number of the last batch of all
SELECT number, epoch, lost_epoch, (SELECT MAX(number) FROM batches)
FROM incarnations WHERE queue = %s AND shard = %s AND ended = 0

-- name: select_with_state
-- whether with bodies (else they are empty), incarnation, ids
-- -> the name of the job's batch if it is COMMITTED (else NULL), and the columns of each job
SELECT batches.batch, id, priority, run_after_ms, sixteenths, attempts, attempts_left,
  updated_ms, crashes, status, IF(%s, body, x'')
FROM jobs FORCE INDEX (PRIMARY) LEFT JOIN batches ON batches.number = jobs.batch AND batches.state = 1
WHERE jobs.incarnation = %s AND jobs.id IN %s

-- name: count_rows
-- now_ms, incarnation -> priority, how many jobs, and how many of them are due
SELECT priority, COUNT(*), SUM(run_after_ms <= %s) FROM jobs FORCE INDEX (restore_order)
WHERE incarnation = %s GROUP BY priority

-- name: count_due
-- incarnation, priority, last_ms, most -> how many jobs are due by then, at most so many
SELECT COUNT(*) FROM (
  SELECT 1 FROM jobs FORCE INDEX (restore_order)
  WHERE incarnation = %s AND priority = %s AND run_after_ms <= %s LIMIT %s
) AS found

-- name: select_places
-- incarnation, ids -> priority and run_after_ms of each job
SELECT priority, run_after_ms FROM jobs FORCE INDEX (PRIMARY) WHERE incarnation = %s AND id IN %s

-- name: select_latest_sizes
-- as select_latest, from incarnation on -> bytes (body, status) of the same jobs
SELECT bytes FROM jobs FORCE INDEX (restore_order)
WHERE incarnation = %s AND priority = %s AND run_after_ms >= %s AND run_after_ms <= %s
  AND (run_after_ms, sixteenths, id) < (%s, %s, %s)
ORDER BY run_after_ms DESC, sixteenths DESC, id DESC LIMIT %s

-- name: select_latest
-- whether with bodies (else they are empty), incarnation, priority, least ms, most ms; ms, sixteenths and id of the
-- last job of the page before; limit
-- -> the name of the job's batch if it is COMMITTED (else NULL), and the columns of each job, the latest first
SELECT batches.batch, id, priority, run_after_ms, sixteenths, attempts, attempts_left,
  updated_ms, crashes, status, IF(%s, body, x'')
FROM jobs FORCE INDEX (restore_order) LEFT JOIN batches ON batches.number = jobs.batch AND batches.state = 1
WHERE jobs.incarnation = %s AND priority = %s AND run_after_ms >= %s AND run_after_ms <= %s
  AND (run_after_ms, sixteenths, id) < (%s, %s, %s)
ORDER BY run_after_ms DESC, sixteenths DESC, id DESC LIMIT %s

-- name: select_ids
-- incarnation, priority, ids -> those of them that have rows
SELECT DISTINCT id FROM jobs FORCE INDEX (PRIMARY) WHERE incarnation = %s AND priority = %s AND id IN %s

-- name: delete_ids
-- incarnation, ids -> the jobs lose their rows in all batches
DELETE FROM jobs WHERE incarnation = %s AND id IN %s

-- name: select_page
-- incarnation, last id of the page before, limit
-- -> id, priority and the name of its batch if it is COMMITTED, of the next jobs by id
SELECT id, priority, batches.batch
FROM jobs FORCE INDEX (PRIMARY) LEFT JOIN batches ON batches.number = jobs.batch AND batches.state = 1
WHERE jobs.incarnation = %s AND id > %s ORDER BY id LIMIT %s

-- name: select_queues
-- nothing -> the names of queues that have rows of a current incarnation
SELECT DISTINCT queue FROM incarnations
WHERE ended = 0 AND EXISTS (SELECT 1 FROM jobs WHERE jobs.incarnation = incarnations.number)

-- name: select_ended
-- nothing -> the numbers of incarnations that ended
SELECT number FROM incarnations WHERE ended > 0

-- name: delete_some_jobs
-- incarnation, limit -> so many of its jobs lose their rows
DELETE FROM jobs WHERE incarnation = %s ORDER BY id LIMIT %s

-- name: delete_restores
-- incarnation -> its restores are removed
DELETE FROM restores WHERE incarnation = %s

-- name: delete_batches
-- incarnation, limit -> so many of its batches lose their rows
DELETE FROM batches WHERE incarnation = %s ORDER BY number LIMIT %s

-- name: delete_incarnation
-- number -> the incarnation is removed
DELETE FROM incarnations WHERE number = %s AND ended > 0

-- name: select_old_batches
-- created_ms, limit -> the numbers of so many FINALIZED batches that are older; their jobs may come back
SELECT number FROM batches WHERE state = 2 AND created_ms < %s ORDER BY created_ms LIMIT %s

-- name: delete_old_batches
-- numbers -> these batches lose their rows
DELETE FROM batches WHERE number IN %s

-- name: select_first
-- incarnation, priority -> run_after_ms of its earliest job
SELECT run_after_ms FROM jobs FORCE INDEX (restore_order) WHERE incarnation = %s AND priority = %s
ORDER BY run_after_ms LIMIT 1

-- name: select_batches_of
-- incarnation, ids -> id, priority and the name of its batch if it is COMMITTED, of each row
SELECT id, priority, batches.batch
FROM jobs FORCE INDEX (PRIMARY) LEFT JOIN batches ON batches.number = jobs.batch AND batches.state = 1
WHERE jobs.incarnation = %s AND id IN %s
