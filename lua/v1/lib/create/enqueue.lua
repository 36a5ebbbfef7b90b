-- How a request comes into being.
-- @include lib/core/state.lua
-- @include lib/permits/permits.lua
-- @include lib/gate/gate.lua
-- @include lib/permits/mint.lua
-- @include lib/core/finish.lua
-- @include lib/entries/add_entries.lua
-- @include lib/entries/inline_bodies.lua
-- @include lib/create/new_request.lua
-- @include lib/ids/former_life.lua

-- `new`: open_ms, shards, and the first chunk: list[first..last].
local function enqueue_error(new)
  if not new.open_ms then
    return redis.error_reply("BADARGUMENT a number is expected for open_ms")
  end
  if not are_shards(new.shards) then
    return redis.error_reply("BADSHARDS numbers with commas between them are expected")
  end
  return entry_error(new.first, new.last)
end

-- `new` has, besides what enqueue_error reads: queue, policy, digest and extras. `intent`: the score in `active` that announced
-- the request. `over`: `born` of an abandoned life whose ending is in the log.
local function enqueue(new, now, intent, over)
  local row = redis.call("HMGET", request, "state", "seen", "over")
  local former, refused
  if row[1] then
    former, refused = former_life(new, now, over)
  end
  if refused then
    return refused
  end
  local seen = tonumber(row[2] or -1)
  if seen >= intent then
    return {"late", seen}
  end
  local state = new_state(new, now)
  if former then
    state.born, state.seq = math.max(now, former.born + 1), former.seq
  elseif row[3] then  -- the marker of a deleted life has its `born`
    state.born = math.max(now, tonumber(row[3]) + 1)
  end
  local left = (new.own and store_distinct or store_bodies)(state, now, new)  -- first, because a full Redis must refuse before anything else is written
  if former or seen >= 0 then
    redis.call("DEL", request)  -- an abandoned life or marker, and its TTL
  end
  if state.open == 1 then
    redis.call("HSET", request, "open_until", now + new.open_ms)
  end
  local tokens = mint(state, now)
  local fields = NOTHING
  if new.extras ~= NOTHING then
    fields = extra_fields(new.extras, state.gate, left)
  end
  save_state(state, "policy", stored_policy(new, state), "queue", new.queue, "digest", new.digest, unpack(fields))
  if finish(state, now) then
    return {"ended", summary(state)}
  end
  return {"ok", tokens, state.born, left}
end
