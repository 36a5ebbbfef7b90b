-- enqueue: creates a request with its first chunk of sub-requests.
-- Idempotent by id and digest: the reply to a repeat describes what is there already, so that the producer resumes.
-- A former life of the id is replaced only if the caller names it in `over`, because its ending must be logged first.
-- Says: ok tokens born left_out? | ended summary | exists chunks chain open summary tokens left_out? | conflict summary
--   | late seen | abandoned summary | kept summary
--   left_out = how many sub-requests of all chunks were left out, because their ids were there; only with ids
--   kept: the id has another request, and the producer asks for none then
-- @include lib/request_keys.lua
local ids = KEYS[11]  -- ids:{id}?  set  the ids of its sub-requests, if it takes each once
local now = ARGV[1]  -- ms, "" = server time
local queue = ARGV[2]  -- queue name
local policy = ARGV[3]  -- ten numbers, see lib/create.lua
local digest = ARGV[4]  -- hex; over queue, policy, extras and the first chunk
local intent = tonumber(ARGV[5])  -- the score this producer left in `active`
local open_ms = tonumber(ARGV[6])  -- how long the request may stay open without a chunk; 0 = it is sealed
local extras = ARGV[7]  -- lines, see lib/create.lua; "" = none
local shards = ARGV[8]  -- where its permits' tokens go in turn: numbers with commas, "" = the queue's own lanes
local over = ARGV[9]  -- the ending of the life that this one replaces, see lib/ids.lua; "" = none
local bodies = 10  -- ARGV[10...]  the first chunk, and with a set of ids one text more: see lib/ids.lua
-- @include lib/core.lua
-- @include lib/ids.lua
-- @include lib/create.lua

if not intent then
  return redis.error_reply("BADARGUMENT enqueue wants a number for intent")
end
local terms, refused = read_policy(policy)
if refused then
  return refused
end
local task
extras, refused, task = read_extras(extras)
if refused then
  return refused
end
local new = {queue = queue, policy = terms, digest = digest, open_ms = open_ms, extras = extras, task = task, shards = shards,
  list = ARGV, first = bodies, last = #ARGV, ids = ids}
return extras.distinct and read_ids(new) or enqueue_error(new) or enqueue(new, now_ms(now), intent, over)
