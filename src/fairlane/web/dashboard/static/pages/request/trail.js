// The words for entries of the audit trail.
const WORDS = {
  "PATCH /v1/requests/{id}": "Changed",
  "DELETE /v1/requests/{id}": "Deleted",
  "POST /v1/requests/{id}/cancel": "Cancelled",
  "POST /v1/requests/{id}/stacks": "Looked at its calls",
  "POST /v1/requests/{id}/kill": "Ended a call",
  "POST /v1/workers/{worker}/stacks": "Looked at the calls of a worker",
  "POST /v1/requests/{id}/pause": "Paused",
  "POST /v1/requests/{id}/resume": "Resumed",
  "POST /v1/requests/{id}/dead/requeue": "Requeued dead",
  "POST /v1/requests/{id}/dead/drop": "Dropped dead",
  "POST /v1/bulk": "Changed many",
  "POST /v1/queue/pause": "Paused the queue",
  "POST /v1/queue/resume": "Resumed the queue",
  "PUT /v1/keys/{name}": "Set the limit of a key",
  "POST /v1/keys/{name}/resume": "Let the order of a key go on",
  "POST /v1/schedules": "Put a schedule",
  "POST /v1/schedules/{name}/pause": "Paused a schedule",
  "POST /v1/schedules/{name}/resume": "Resumed a schedule",
  "DELETE /v1/schedules/{name}": "Removed a schedule",
  "POST /v1/flows/{id}/cancel": "Cancelled a flow",
  "POST /v1/webhooks": "Put a webhook",
  "POST /v1/webhooks/{name}/resume": "Resumed a webhook",
  "DELETE /v1/webhooks/{name}": "Removed a webhook",
};

/** Returns what an action did, in words; an unknown one is shown as it is. */
export const actionText = (action) => WORDS[action] ?? action;
