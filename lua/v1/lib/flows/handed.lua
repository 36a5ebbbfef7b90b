-- Which indexes of the source a step has: the bits of the string `handed`. A cursor is not enough, because it names a place in a
-- stream of another slot: a failover there may take back entries, whose sub-requests then run again.
local HANDED_MS = "2678400000"  -- 31 days: longer than any queue is without a worker
local MOST_INDEX = 4294967295  -- a string of Redis has no more bits

local function is_handed(index)
  return redis.call("GETBIT", handed, index) == 1
end

-- Writes one bit as it is: so Redis refuses, if at all, before anything is added.
local function prove_handed(index)
  if index then
    redis.call("SETBIT", handed, index, redis.call("GETBIT", handed, index))
  end
end

local function note_handed(indexes)
  for _, index in ipairs(indexes) do
    redis.call("SETBIT", handed, index, 1)
  end
  if #indexes > 0 then
    redis.call("PEXPIRE", handed, HANDED_MS)
  end
end
