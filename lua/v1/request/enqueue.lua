-- enqueue: a request comes into being with its first chunk of sub-requests.
-- Idempotent by id and digest: a repeat says what is there already, so that the producer resumes.
-- An abandoned life of the id is replaced when the caller names it, because its ending must be in the log first.
-- Says: ok tokens born | ended summary | exists chunks chain open summary tokens | conflict summary | late seen
--   | abandoned summary
-- @include lib/core/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local queue = ARGV[2]  -- queue name
local priority = tonumber(ARGV[3])  -- lane 0..99
local limit = tonumber(ARGV[4])  -- permits 1..10000
local digest = ARGV[5]  -- hex; over queue, priority, limit, options and the first chunk
local intent = tonumber(ARGV[6])  -- the score this producer left in `active`
local open_ms = tonumber(ARGV[7])  -- how long the request may stay open without a chunk; 0 = sealed at once
local attempts = tonumber(ARGV[8])  -- deliveries before a sub-request is dead
local backoff_min = tonumber(ARGV[9])  -- ms
local backoff_max = tonumber(ARGV[10])  -- ms
local lease_ms = tonumber(ARGV[11])  -- ms
local retain_ms = tonumber(ARGV[12])  -- ms; how long results stay after the end
local deadline_ms = tonumber(ARGV[13])  -- ms from now, after which nothing of it starts; 0 = none
local time_limit_ms = tonumber(ARGV[14])  -- ms one call of the handler may take; 0 = any
local durable = tonumber(ARGV[15])  -- how many replicas must have what is acknowledged
local parent = ARGV[16]  -- the request whose dead sub-requests these were, or ""
local shards = ARGV[17]  -- where its permits' tokens go in turn: numbers with commas, "" = the queue's own lanes
local over = tonumber(ARGV[18])  -- when the abandoned life began that this one replaces; 0 = none
local bodies = 19  -- ARGV[19...]  the first chunk
-- @include lib/core/now_ms.lua
-- @include lib/create/enqueue.lua

if not over then
  return redis.error_reply("BADARGUMENT enqueue wants a number for over")
end
return enqueue_error() or enqueue(now_ms(now), intent, over)
