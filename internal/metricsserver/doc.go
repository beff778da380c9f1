// Package metricsserver serves /metrics as every program of Holdfast does. Over HTTPS, the API
// server authenticates each client (TokenReview) and authorizes it (SubjectAccessReview), as the
// filters of controller-runtime do.
package metricsserver
