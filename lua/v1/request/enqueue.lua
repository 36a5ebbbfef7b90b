-- enqueue: a request comes into being with its first chunk of sub-requests.
-- Idempotent by id and digest: a repeat says what is there already, so that the producer resumes.
-- Says: ok tokens | ended summary | exists chunks chain open summary tokens | conflict summary | late seen
-- @include lib/request_keys.lua
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
local bodies = 18  -- ARGV[18...]  the first chunk
-- @include lib/now_ms.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/mint.lua
-- @include lib/finish.lua
-- @include lib/add_entries.lua
-- @include lib/few.lua
-- @include lib/chain.lua
-- @include lib/birth.lua

if not priority or priority < 0 or priority > 99 or priority % 1 ~= 0 then
  return redis.error_reply("BADPRIORITY a whole number from 0 to 99 is expected")
end
if not limit or limit < 1 or limit > 10000 or limit % 1 ~= 0 then
  return redis.error_reply("BADLIMIT a whole number from 1 to 10000 is expected")
end
for i = 6, 15 do
  if not tonumber(ARGV[i]) then
    return redis.error_reply("BADARGUMENT enqueue wants a number as argument " .. i)
  end
end
if not are_shards(shards) then
  return redis.error_reply("BADSHARDS numbers with commas between them are expected")
end
local refused = entry_error(bodies)
if refused then
  return refused
end
now = now_ms(now)
local state = load_state()
if state then
  if redis.call("HGET", request, "digest") ~= digest then
    return {"conflict", summary(state)}
  end
  local chunks, chain = chain_of()
  return {"exists", chunks, chain, state.open, summary(state), queued_tokens(now)}
end
local seen = tonumber(redis.call("HGET", request, "seen") or -1)
if seen >= intent then
  return {"late", seen}
end
state = new_state(now)
store_bodies(state, now)  -- first, as a full Redis refuses here, before anything else is written
if seen >= 0 then
  redis.call("DEL", request)  -- an abandoned marker and its TTL
end
if state.open == 1 then
  redis.call("HSET", request, "open_until", now + open_ms)
end
if parent ~= "" then
  redis.call("HSET", request, "parent", parent)
end
local tokens = mint(state, now)
save_state(state, "policy", policy_text(state), "queue", queue, "digest", digest)
if finish(state, now) then
  return {"ended", summary(state)}
end
return {"ok", tokens}
