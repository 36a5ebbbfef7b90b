-- The ten keys of one of several requests, under the names of lib/request_keys.lua. The libraries work on the
-- request that was selected last. Its hash is declared, and the others are derived: one server has all keys.
local stream, counter, request, permits, leases, retries, results, dead, few, errors

local function select_request(hash)
  if hash == request then
    return
  end
  local tag = string.sub(hash, 4)  -- req:{id}
  stream, counter, request, permits, leases, retries, results, dead, few, errors = "sub" .. tag, "counter" .. tag, hash,
    "tok" .. tag, "lease" .. tag, "retry" .. tag, "out" .. tag, "dead" .. tag, "few" .. tag, "error" .. tag
end
