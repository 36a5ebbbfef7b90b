export function actionButtons() { return []; }
