"use strict";
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#api",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null, // the only thing that it would ask elsewhere
});
