-- Adds sub-requests to an open request beside the numbered chunks of its producer.
-- @include lib/core/state.lua
-- @include lib/permits/mint.lua
-- @include lib/permits/queue_permit.lua
-- @include lib/entries/add_entries.lua
-- @include lib/entries/prove_rights.lua
local function grow(state, now, open_ms, bodies, is_sealed)
  prove(state, now)
  local count = add_entries(state, now, bodies, 1, #bodies)
  redis.call("INCRBY", counter, is_sealed and count - 1 or count)
  redis.call("HSET", request, "open_until", now + open_ms)
  return count
end

-- Ends a script that added rows: seals the request if that is wanted, and returns the tokens that are due now. The added
-- rows are not done yet, so the request never ends here.
local function grown(state, now, is_sealed)
  state.open = is_sealed and 0 or state.open
  local tokens = mint(state, now)
  save_state(state)
  if is_sealed and state.state ~= "cancelling" then
    redis.call("HDEL", request, "open_until")
  end
  return tokens
end

-- Returns the early reply of a script: a refusal if the request cannot take the rows in `wanted`, or "nothing added" if
-- the request is over and `wanted` is empty. Nil = go on.
local function answer_early(state, over, wanted)
  if #wanted > 0 and (over or state.open == 0) then
    return over or {"closed"}
  end
  return over and {"ok", {}, 0, 0}
end

-- Returns the reply of a script that added `wanted`. A repeat gets all tokens that are queued, because the reply
-- that named them may be lost.
local function answer_grown(state, now, wanted)
  local tokens = grown(state, now, false)
  return {"ok", #wanted > 0 and tokens or queued_tokens(state, now), #wanted, state.fresh}
end
