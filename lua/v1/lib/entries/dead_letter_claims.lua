-- Claims of new requests on dead sub-requests of an ended one: see claim_dead.
local CLAIMS = "requeue"
local FINAL = "claimed:"  -- ... and the id of a new request: a field of `req:{id}`

-- Returns the new request that has claimed a dead entry, nil if none has.
local function owner_of(entry)
  local found = redis.pcall("XPENDING", dead, CLAIMS, entry, entry, 1)
  return not found.err and found[1] and found[1][2] or nil
end

local function is_final(id)
  return redis.call("HEXISTS", request, FINAL .. id) == 1
end

-- Returns how many dead entries a new request has claimed.
local function claimed_by(id)
  local found = redis.pcall("XPENDING", dead, CLAIMS)
  for _, row in ipairs(not found.err and found[4] or {}) do
    if row[1] == id then
      return tonumber(row[2])
    end
  end
  return 0
end
