-- An open request takes more sub-requests from elsewhere than its producer's numbered chunks.
-- @include lib/core/state.lua
-- @include lib/permits/mint.lua
-- @include lib/permits/queue_permit.lua
-- @include lib/entries/add_entries.lua
-- @include lib/entries/prove_rights.lua
local function grow(state, now, open_ms, bodies, is_sealed)
  prove(state, now)
  local count = add_entries(state, now, bodies, 1)
  redis.call("INCRBY", counter, is_sealed and count - 1 or count)
  redis.call("HSET", request, "open_until", now + open_ms)
  return count
end

-- How such a script ends: the seal, if it is wanted, and the tokens that are due now. What has just
-- come in is not done, so this is never the request's end.
local function grown(state, now, is_sealed)
  state.open = is_sealed and 0 or state.open
  local tokens = mint(state, now)
  save_state(state)
  if is_sealed and state.state ~= "cancelling" then
    redis.call("HDEL", request, "open_until")
  end
  return tokens
end

-- What ends a script that would add `wanted`: {refusal}, or an empty answer when nothing is left to
-- add to a request that is over. nil = go on.
local function answer_early(state, over, wanted)
  if #wanted > 0 and (over or state.open == 0) then
    return over or {"closed"}
  end
  return over and {"ok", {}, 0, 0}
end

-- The answer of a script that added `wanted`. A repeat is told all tokens that are queued: the reply
-- that named them may have been lost.
local function answer_grown(state, now, wanted)
  local tokens = grown(state, now, false)
  return {"ok", #wanted > 0 and tokens or queued_tokens(now), #wanted, state.fresh}
end
