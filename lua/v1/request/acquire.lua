-- acquire: a worker shows a token and gets a permit, a lease and a slice of sub-requests.
-- A repeat with the same op is answered the same again. Once g matched, every refusal parks the
-- permit and mints, so that no refusal ever eats a token.
-- Says: ok fence attempt policy entries tokens | empty tokens | busy tokens | paused tokens | stale | ended summary | gone
--   | alone (shared, but a retry is due, whose death must count: nothing has changed, ask again for it alone)
--   policy = now, born, lease_ms, attempts, backoff_min, backoff_max, priority, time_limit_ms, durable, and
--   how many nobody has begun so far; entries = {id, {"b", body}}
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local k = ARGV[2]  -- permit
local g = ARGV[3]  -- the token's generation
local op = ARGV[4]  -- hex; 128 random bits of this call
local worker = ARGV[5]  -- host:port
local started = ARGV[6]  -- ms; tells a restarted worker from its former self
local count = tonumber(ARGV[7])  -- the most sub-requests of the slice, 1..1000
local shared = ARGV[8]  -- "1" = one of several leases in the same hands: its death charges nobody
-- @include lib/now_ms.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/few.lua
-- @include lib/mint.lua
-- @include lib/orphan.lua
-- @include lib/take_slice.lua

if not count or count < 1 or count > 1000 then
  return redis.error_reply("BADCOUNT a slice of 1 to 1000 is expected")
end
local state, over = living_state()
if over then
  return over
end
now = now_ms(now)
local permit = read_permit(k)
if permit.kind == "h" and permit.op == op and permit.g == g then
  redis.call("ZADD", leases, "XX", now + state.lease_ms, k)
  local entries, attempt = taken_before(state, consumer_of(permit, k))
  return granted(state, now, permit, attempt, entries, queued_tokens(now))
end
if permit.kind ~= "q" or permit.g ~= g then
  return {"stale"}
end
state.is_calm = state.few > 0 or redis.call("EXISTS", retries) == 0  -- no retry waits, and none will before this ends
local due, is_unblamed = due_retry(state, now)
if shared == "1" and due and not is_unblamed then
  return {"alone"}
end
local word = "ok"
unqueue(state, k)
if state.state ~= "active" or is_overdue(state, now) then
  word = "paused"
elseif state.held >= state.limit then
  word = "busy"
elseif ready(state, now) == 0 then
  word = "empty"
end
if word ~= "ok" then
  park(state, k)
  local tokens = mint(state, now)
  save_state(state)
  return {word, tokens}
end
state.seq = state.seq + 1
permit = {fence = string.format("%d", state.seq), g = g, op = op, started = started, worker = worker,
  shared = shared == "1" and "1" or ""}
local entries, attempt = take_slice(state, now, consumer_of(permit, k), count)
if not entries then  -- somebody deleted the stream: nothing can be taken, fsck names it
  return {"gone"}
end
permit.owed = #entries
local is_row = entries[1] and (#entries == 1 or not due)  -- else others may stand in between
permit.first, permit.last = is_row and entries[1][1] or "", is_row and entries[#entries][1] or ""
write_held(k, permit)
redis.call("ZADD", leases, string.format("%d", now + state.lease_ms), k)
state.held = state.held + 1
local tokens = mint(state, now)
save_state(state)
return granted(state, now, permit, attempt, entries, tokens)
