-- The first permit of a new request, which has no field in tok:{id} while it waits.

-- Returns a lane's number: its priority, plus a hundred times the shard if the queue is spread over shards.
local function lane_of(state, k)
  if state.shards == "" then
    return state.priority
  end
  if not state.shard_list then
    state.shard_list = {}
    for shard in string.gmatch(state.shards, "%d+") do
      state.shard_list[#state.shard_list + 1] = tonumber(shard)
    end
  end
  return 100 * state.shard_list[k % #state.shard_list + 1] + state.priority
end

local FIRST = 1  -- the g of the first token, which only a token that is minted at creation may have

-- Returns true while permit 0 waits as it was queued at creation. Most requests have one sub-request, so this saves most
-- of them a key. Every fence and every other token makes `seq` larger.
local function is_first_waiting(state)
  return state.seq == FIRST and state.queued == 1
end

local function first_permit(state)
  return {kind = "q", g = tostring(FIRST), since = state.born, lane = lane_of(state, 0), due = 0}
end

-- Returns the fields of tok:{id} as HGETALL does, with the one that the first permit would have.
local function all_permits(state)
  local all = redis.call("HGETALL", permits)
  if is_first_waiting(state) then
    all[#all + 1], all[#all + 2] = "0", string.format("q:%d:%d:%d:0", FIRST, state.born, lane_of(state, 0))
  end
  return all
end

local function count_fields(state)
  return redis.call("HLEN", permits) + (is_first_waiting(state) and 1 or 0)
end
