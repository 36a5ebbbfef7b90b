-- A token as it is popped: "<id>#<k>.<g>", with "@<share>:<tenant>" behind it if the request names a tenant.
local TOKEN = "^([^#]+)#(%d+)%.(%d+)$"
local WITH_TENANT = "^([^#]+)#(%d+)%.(%d+)@[^@]+$"

-- Returns the request, permit and generation of a token, or nil.
local function parse_token(token)
  local id, k, g = string.match(token, TOKEN)
  if id then
    return id, k, g
  end
  return string.match(token, WITH_TENANT)
end
