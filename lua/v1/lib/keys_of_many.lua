-- Selects one of several requests: sets the names of lib/request_keys.lua to its ten keys. The libraries work on the
-- request that was selected last. KEYS has the hash of each request, req:{id}. The other keys are derived from it, so one server
-- must have all keys.
local stream, counter, request, permits, leases, retries, results, dead, few, errors

local function select_request(hash)
  if hash == request then
    return
  end
  local tag = string.sub(hash, 4)  -- :{id}
  stream, counter, request, permits, leases, retries, results, dead, few, errors = "sub" .. tag, "counter" .. tag, hash,
    "tok" .. tag, "lease" .. tag, "retry" .. tag, "out" .. tag, "dead" .. tag, "few" .. tag, "error" .. tag
end
