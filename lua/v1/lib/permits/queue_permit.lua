-- Queues a permit: chooses its lane, writes it to the hash, and adds its token to the list that the caller gets, as three
-- values: lane, "<k>.<g>" or "<k>.<g>@<share>:<tenant>", delay in ms (0 = now).
-- @include lib/permits/first_permit.lua
local function write_queued(k, g, at, lane, due)
  redis.call("HSET", permits, k, string.format("q:%d:%d:%d:%d", g, at, lane, due))
end

local function queue_permit(state, k, now, due, tokens)
  local lane = lane_of(state, k)
  if is_first_waiting(state) then  -- no longer as it was queued at creation
    write_queued("0", FIRST, state.born, lane_of(state, 0), 0)
  end
  if state.seq < FIRST and (now ~= state.born or due > now) then
    state.seq = FIRST
  end
  state.seq = state.seq + 1
  if state.seq > FIRST then
    write_queued(k, state.seq, now, lane, due)
  end
  tokens[#tokens + 1] = string.format("%d", lane)
  local permit = string.format("%s.%d", k, state.seq)
  tokens[#tokens + 1] = state.gate.turn == "" and permit or permit .. "@" .. state.gate.turn
  tokens[#tokens + 1] = due > now and due - now or 0
end

-- Returns the tokens of all queued permits whose g is above `last`, and the highest g among them.
local function all_queued(state, now, last)
  local tokens, newest, suffix = {}, last, state.gate.turn == "" and "" or "@" .. state.gate.turn
  local all = all_permits(state)
  for i = 1, #all, 2 do
    local g, lane, due = string.match(all[i + 1], "^q:(%d+):%d+:(%d+):(%d+)$")
    if g and tonumber(g) > last then
      tokens[#tokens + 1] = lane
      tokens[#tokens + 1] = all[i] .. "." .. g .. suffix
      tokens[#tokens + 1] = math.max(0, tonumber(due) - now)
      newest = math.max(newest, tonumber(g))
    end
  end
  return tokens, newest
end

-- Returns queued tokens once more to a call that is repeated, because the first reply may be lost. Each token is
-- returned once more only, because a program may repeat calls without end, and every copy stays in its lane until it is
-- popped. `repeated` in the hash is the highest g that was repeated. If a repeated token is lost, the auditor finds it.
-- @rare
local function queued_tokens(state, now)
  local last = tonumber(redis.call("HGET", request, "repeated") or 0)
  local tokens, newest = all_queued(state, now, last)
  if newest > last then
    redis.call("HSET", request, "repeated", string.format("%d", newest))
  end
  return tokens
end
